"""Questions about a team, a run or a coach that are answered without changing a weight."""
