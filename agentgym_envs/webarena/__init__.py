"""WebArena: tasks on web sites, done in a browser."""
