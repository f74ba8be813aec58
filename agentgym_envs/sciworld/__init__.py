"""SciWorld: science tasks in the ScienceWorld simulator, which runs in Java."""
