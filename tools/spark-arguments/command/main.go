// Reads SparkApplications, one line of JSON each, and prints for each a line of JSON: the arguments
// with which the Spark operator would run spark-submit, or the error with which it would not.
// It runs nothing. KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT name the API server.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"

	kjson "sigs.k8s.io/json"

	"github.com/kubeflow/spark-operator/v2/api/v1beta2"
	"github.com/kubeflow/spark-operator/v2/internal/controller/sparkapplication"
)

type answer struct {
	Arguments []string `json:"arguments,omitempty"`
	Error     string   `json:"error,omitempty"`
}

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(in io.Reader, out io.Writer) error {
	// The builder writes pod templates to a folder of the submission's name.
	submission := fmt.Sprintf("tandem-%d", os.Getpid())
	defer os.RemoveAll("/tmp/spark/" + submission)
	lines, written := bufio.NewReaderSize(in, 1<<20), bufio.NewWriter(out)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			text, failed := json.Marshal(answered(line, submission))
			if failed != nil {
				return failed
			}
			if _, failed = written.Write(append(text, '\n')); failed != nil {
				return failed
			}
		}
		if err == io.EOF {
			return written.Flush()
		}
		if err != nil {
			return err
		}
	}
}

func answered(line []byte, submission string) answer {
	app := &v1beta2.SparkApplication{}
	// As Kubernetes' clients decode: names of fields have one spelling.
	if err := kjson.UnmarshalCaseSensitivePreserveInts(line, app); err != nil {
		return answer{Error: err.Error()}
	}
	app.Status.SubmissionID = submission
	arguments, err := sparkapplication.Arguments(app)
	if err != nil {
		return answer{Error: err.Error()}
	}
	return answer{Arguments: arguments}
}
