#include "textflag.h"

// func pause(n uint32)
TEXT ·pause(SB), NOSPLIT, $0-4
	MOVL n+0(FP), CX
	TESTL CX, CX
	JZ   done
again:
	PAUSE
	SUBL $1, CX
	JNZ  again
done:
	RET
