"""What a pipeline tells about itself while it runs: counters, rates and the watermark."""
