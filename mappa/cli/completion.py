"""`mappa completion`: print the script by which a shell completes commands, options and names."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

COMPLETION_VARIABLE = "_MAPPA_COMPLETE"
"""Environment variable by which the script requests completions; click derives its name from the program's."""


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the script that completes `mappa` in a shell.

    \b
      bash   echo 'eval "$(mappa completion bash)"' >> ~/.bashrc
      zsh    mappa completion zsh > ~/.zfunc/_mappa       with fpath+=~/.zfunc before compinit in ~/.zshrc
      fish   mappa completion fish > ~/.config/fish/completions/mappa.fish
    """
    completion = get_completion_class(shell)
    assert completion is not None
    click.echo(completion(ctx.find_root().command, {}, "mappa", COMPLETION_VARIABLE).source())
