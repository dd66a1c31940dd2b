"""Images as uint8 rows: stores, files, decoding, caches."""
