"""The Nexmark benchmark's generator as a source."""
