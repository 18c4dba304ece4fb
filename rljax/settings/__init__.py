"""Floor 1: what every record of settings needs: its flat names, the checks of its values, options by name."""
