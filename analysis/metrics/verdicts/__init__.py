"""What limits communication, in one plain sentence, with the numbers it rests on."""
