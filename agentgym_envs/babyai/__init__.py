"""BabyAI: instructions in a grid world of rooms, seen and acted in through text."""
