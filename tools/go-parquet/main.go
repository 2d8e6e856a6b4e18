// The program go-parquet writes Parquet by parquet-go and reads it by Arrow Go, for tests: two
// implementations that share no code with those of the tests' other readers and writers.
//
//	go-parquet write OPTIONS FILE   rows of an Arrow stream on stdin become FILE; options are JSON
//	go-parquet read FILE            the rows of FILE, as an Arrow stream on stdout
//	go-parquet check FILE           page indexes and bloom filters of FILE say what its pages hold
//
// Ends with 1 and a line on stderr if that cannot be done.
package main

import (
	"bufio"
	"fmt"
	"os"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "go-parquet:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 3 && args[0] == "write":
		return write(bufio.NewReader(os.Stdin), args[1], args[2])
	case len(args) == 2 && args[0] == "read":
		return read(args[1], os.Stdout)
	case len(args) == 2 && args[0] == "check":
		return check(args[1])
	}
	return fmt.Errorf("write OPTIONS FILE, read FILE or check FILE")
}
