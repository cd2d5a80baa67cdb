"""Questions about the state and the history: one file each."""
