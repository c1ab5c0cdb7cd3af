"""Orders, and what was done for them."""

from django.db import models


class Order(models.Model):
    name = models.CharField(max_length=100)
    shipped = models.IntegerField(default=0)

    class Meta:
        app_label = "shop"
