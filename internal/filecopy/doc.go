// Package filecopy sends a file over a connection, with a checksum, and from where an
// earlier try was cut off:
//
//	sender                                    receiver
//	{"version":1,"name":"a","size":9}    →
//	                                     ←    {"offset":4,"sha256":"…"}: of its bytes
//	{"offset":4}, then 5 bytes           →    (offset 0, if its bytes differ)
//	{"sha256":"…"}: of all 9 bytes       →
//	                                     ←    {"done":true}
//
// Messages are lines of JSON. The receiver answers {"error":"…"} where it refuses. Received
// bytes lie in a file of another name until their checksum is right.
package filecopy
