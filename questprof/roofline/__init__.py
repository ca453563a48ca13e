"""What a device could reach, measured, and where every stage stands under it."""
