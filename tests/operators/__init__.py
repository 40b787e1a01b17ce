"""Window operators, driven bare: no Spark, one key group after the other."""
