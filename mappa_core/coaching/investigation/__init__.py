"""A coach that investigates a whole play, by questions of its own, instead of being shown a part of it."""
