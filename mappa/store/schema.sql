-- Schema of `run.db`: one SQLite database per run, schema 1 (`PRAGMA user_version`).
--
--     meta           name, value                     `run` (an id), `generation` (see `Store`), `mappa` (its version), and
--                                                    notes (`note/…`, JSON): how far a command read logs, and judged
--     blobs          address, data                   long strings and arrays, once by content (see `codec`)
--     trajectories   number, id, split, iteration, sample, task_id, stratum, task, finished, outcome, error, seconds
--     steps          id, trajectory, position, agent, turn, policy, tokens, finish, body
--     verdicts       step, id, number, coach, phase, status, score, blame, body
--     labels         trajectory, step, kind, labeller, body
--     iterations     number, report
--     events         number, time, kind, body
--
-- `task`, `outcome`, `error`, `body`, `verdict` and `report` are packed records (JSON, see `codec`); the other columns
-- repeat values that SQL queries need. `number` of a trajectory counts them in the order in which they began. `finished`
-- is 0 until it ends; an `error` is the Failure it ended with. `tokens` counts sampled tokens and is NULL for policies
-- behind an API. `number` of a verdict counts those on its step as they came; `score` is points 0-10, NULL unless scored.
-- `time` is seconds since the epoch, `seconds` a duration. Labels are what is known of trajectories that no agent and no
-- coach sees; their `step` is '' for the whole trajectory. A new label of guilt replaces that of the same labeller.

CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE blobs (address TEXT PRIMARY KEY, data BLOB NOT NULL);
CREATE TABLE trajectories (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, split TEXT NOT NULL, iteration INTEGER NOT NULL,
    sample INTEGER NOT NULL, task_id TEXT NOT NULL, stratum TEXT NOT NULL, task TEXT NOT NULL,
    finished INTEGER NOT NULL DEFAULT 0, outcome TEXT, error TEXT, seconds REAL
);
CREATE INDEX trajectories_by_iteration ON trajectories (split, iteration);
CREATE TABLE steps (
    id TEXT PRIMARY KEY, trajectory TEXT NOT NULL REFERENCES trajectories (id) ON DELETE CASCADE,
    position INTEGER NOT NULL, agent TEXT NOT NULL, turn INTEGER NOT NULL, policy TEXT NOT NULL,
    tokens INTEGER, finish TEXT NOT NULL, body TEXT NOT NULL, UNIQUE (trajectory, position)
);
CREATE TABLE verdicts (
    step TEXT NOT NULL REFERENCES steps (id) ON DELETE CASCADE, id TEXT NOT NULL, number INTEGER NOT NULL,
    coach TEXT NOT NULL, phase TEXT NOT NULL, status TEXT NOT NULL, score REAL, blame TEXT, body TEXT NOT NULL,
    PRIMARY KEY (step, id)
);
CREATE TABLE labels (
    trajectory TEXT NOT NULL REFERENCES trajectories (id) ON DELETE CASCADE, step TEXT NOT NULL, kind TEXT NOT NULL,
    labeller TEXT NOT NULL, body TEXT NOT NULL, UNIQUE (trajectory, step, kind, labeller)
);
CREATE TABLE iterations (number INTEGER PRIMARY KEY, report TEXT NOT NULL);
CREATE TABLE events (number INTEGER PRIMARY KEY, time REAL NOT NULL, kind TEXT NOT NULL, body TEXT NOT NULL);
CREATE INDEX events_by_kind ON events (kind);
