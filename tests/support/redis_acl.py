"""Users of a Redis server who have the rights that Holdfast needs in one namespace, and no others."""

import secrets

from redis_server import RedisServer
from redis_stores import Store, forget_user

from holdfast.engines.redis.acl import acl_rules


def limited(server: RedisServer, store: Store) -> Store:
    """The same store with the login of such a user. On a server that the tests did not start, the store as it is."""
    if not server.own:
        return store
    user, password = f"user-of-{store.namespace}", secrets.token_hex(16)
    server.execute("ACL", "SETUSER", user, "reset", "on", f">{password}", *acl_rules(store.namespace))
    forget_user(server, user)
    return store._replace(url=server.url(user=user, password=password))
