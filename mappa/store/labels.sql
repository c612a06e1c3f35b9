-- What is known of trajectories that no agent and no coach sees; since schema 3. `step` is '' for the whole trajectory.
CREATE TABLE labels (
    trajectory TEXT NOT NULL REFERENCES trajectories (id) ON DELETE CASCADE, step TEXT NOT NULL, kind TEXT NOT NULL,
    labeller TEXT NOT NULL, body TEXT NOT NULL, UNIQUE (trajectory, step, kind, labeller)
);
