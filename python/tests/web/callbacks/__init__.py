"""Code of the program that raises, in every verb and integration."""
