"""What the sites hold: invented, and the same bytes wherever it is made."""
