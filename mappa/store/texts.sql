-- Contentless index of the words of ended trajectories. Only an SQLite with FTS5 has it.
CREATE VIRTUAL TABLE texts USING fts5 (
    task, said, printed, judged, content = '', tokenize = "unicode61 tokenchars '_'"
);
