"""What the doors into web frameworks share: keys, the decision, and what clients are told."""
