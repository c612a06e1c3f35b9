"""What a notebook or a script calls: `train`, `observe`, `judge` and `compare` of the objects that it holds.

They do what the commands of these names do, with the same schema, checks and run folders, and return values that show
themselves. Import them from `mappa`.
"""
