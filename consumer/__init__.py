"""A framework for stateful processing of journals: shards, transactions, recovery.

``consumer.message`` holds what is known about single messages and needs no cluster.
"""
