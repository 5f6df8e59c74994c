"""Which classes score best."""
