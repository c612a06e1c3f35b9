"""The tool `python`: programs of agents, each in a process of its own."""
