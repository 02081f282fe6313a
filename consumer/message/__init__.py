"""Exactly-once messages over journal bytes: UUIDs, framings, mappings and the sequencer.

All of it is pure and imports ``protocol`` alone, so that the client library and Spark executors can use it
without loading the consumer framework.
"""
