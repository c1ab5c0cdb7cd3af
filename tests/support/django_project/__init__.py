"""A small Django project: a shop with orders, for the tests of holdfast.django."""
