"""The commands of mailonce, one module for each subject."""
