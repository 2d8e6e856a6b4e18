// Compiled into Go's package time by tools/build-etcd-clock.sh, where Now adds wallOffset to its
// wall clock. The monotonic clock is as it was, as when a machine's clock is set.

package time

import (
	"sync/atomic"
	"syscall"
)

const wallPause = 5 * Millisecond // between two looks at the file

var wallSeconds atomic.Int64

// Now reads no file itself: timers call it where Go allows no system call.
func init() {
	name, _ := syscall.Getenv("ETCD_WALL_OFFSET_FILE")
	if name == "" {
		return
	}
	wallSeconds.Store(readWallOffset(name))
	go func() {
		for {
			Sleep(wallPause)
			wallSeconds.Store(readWallOffset(name))
		}
	}()
}

// wallOffset returns by how many seconds the wall clock is ahead.
func wallOffset() int64 {
	return wallSeconds.Load()
}

// readWallOffset returns the number in the file, or 0 without one.
func readWallOffset(name string) int64 {
	file, err := open(name)
	if err != nil {
		return 0
	}
	defer closefd(file)
	buffer := make([]byte, 32)
	count, err := read(file, buffer)
	if err != nil {
		return 0
	}
	sign, seconds := int64(1), int64(0)
	for _, letter := range buffer[:max(0, count)] {
		if letter == '-' {
			sign = -1
		} else if '0' <= letter && letter <= '9' {
			seconds = seconds*10 + int64(letter-'0')
		}
	}
	return sign * seconds
}
