"""Pictures of memory over time: what is drawn, worked out once, and what draws it."""
