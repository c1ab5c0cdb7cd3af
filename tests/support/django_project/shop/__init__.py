"""The app with the orders."""
