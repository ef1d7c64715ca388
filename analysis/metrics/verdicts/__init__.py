"""What limits communication, in one sentence a person understands, with the numbers it rests on."""
