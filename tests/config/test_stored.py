"""Stored configs with what a user says now."""

from mappa.config.compose import read_stored


def test_a_choice_that_is_repeated_keeps_the_options_that_a_run_stored(tmp_path):
    (tmp_path / "config.yaml").write_text("recipe: a/b\ncoach:\n  use: llm\n  options: {url: here, model: old}\n")
    stored = read_stored(tmp_path)
    same = stored.lay_over(["coach.use=llm", "coach.options.model=new"]).plain["coach"]
    assert same["options"] == {"url": "here", "model": "new"}
    other = stored.lay_over(["coach.use=rules", "coach.options.model=new"]).plain["coach"]
    assert other["options"] == {"model": "new"}
