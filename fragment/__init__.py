"""From journal offsets to bytes, on a broker's disk or in an object store."""
