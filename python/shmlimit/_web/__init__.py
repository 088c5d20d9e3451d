"""What the integrations with web frameworks share: options, keys, and the decision."""
