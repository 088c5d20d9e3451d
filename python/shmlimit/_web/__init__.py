"""What the web framework integrations share: options, keys, and the decision."""
