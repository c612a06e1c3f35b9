"""How the small model that comes with core was made: `package:mappa_core/models/tiny`.

It reads and writes bytes, so it fits any text, and it can do one thing, imperfectly: repeat one of the lines that begin
with `- ` in the last message or, where there are none, one of its words. It knows no words and prefers no line. A team
that is played by it acts from the first action on, and is taught which line is the right one: to the recipes of
`mappa new workflow`, and to tests of whole runs, it is what a language model is to others.
"""
