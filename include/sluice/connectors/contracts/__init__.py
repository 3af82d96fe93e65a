"""The interfaces of sources and sinks, and the code that connectors share."""
