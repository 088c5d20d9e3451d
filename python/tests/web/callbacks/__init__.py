"""The program's own code raises, in every verb and integration."""
