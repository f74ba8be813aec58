"""TextCraft: craft a Minecraft item out of raw materials, from a list of recipes."""
