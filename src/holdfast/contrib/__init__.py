"""Holdfast beside other libraries. Each module needs the one it is named after; none is imported unasked."""
