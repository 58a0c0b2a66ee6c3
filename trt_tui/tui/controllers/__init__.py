"""The parts of the main screen: each performs the actions of one area, and states why an action is impossible now."""
