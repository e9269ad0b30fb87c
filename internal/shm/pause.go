package shm

// Pause makes the processor wait for about n times the time of its pause
// instruction, tens of nanoseconds each, without giving it up.
func Pause(n uint32) { pause(n) }
