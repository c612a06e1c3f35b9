"""Creation of the tiny model that is bundled with the package: `package:mappa_engine/models/tiny`.

Its tokens are bytes, so it handles any text, and it can do one thing, imperfectly: repeat one of the lines that begin
with `- ` in the last message or, if there are none, one of its words. It prefers no line and no word. A team that plays
with it acts from the first action on, and training teaches it which line is right. The recipes of `mappa new workflow`
and end-to-end tests use it in place of a language model.
"""
