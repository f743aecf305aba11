"""Models around an attention module."""
