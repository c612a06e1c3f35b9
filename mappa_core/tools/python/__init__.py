"""The tool `python`: runs programs of agents, each in its own sandboxed process."""
