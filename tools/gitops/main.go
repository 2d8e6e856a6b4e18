// gitops answers what GitOps tools think of a Kubernetes object, with their own code: kstatus,
// Flux's evaluator of health expressions, Argo CD's health and its comparison with a manifest.
//
// Requests are JSON objects on standard input, one a line; for each there is one line of answer:
//
//	{"engine": "kstatus", "object": …}                          → {"status": "Current", …}
//	{"engine": "flux", "object": …, "expressions": {"current": …}} → {"status": "Failed"}
//	{"engine": "argo", "object": …, "script": "return …"}       → {"status": "Healthy", …}
//	{"engine": "argo-diff", "object": …, "manifest": …}         → {"status": "Synced"}
//
// What an engine cannot make sense of is answered with "error". Opens no connection.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/fluxcd/pkg/apis/kustomize"
	fluxcel "github.com/fluxcd/pkg/runtime/cel"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
)

const longestLine = 16 << 20

type request struct {
	Engine      string                           `json:"engine"`
	Object      *unstructured.Unstructured       `json:"object"`
	Manifest    *unstructured.Unstructured       `json:"manifest"`
	Script      string                           `json:"script"`
	Expressions kustomize.HealthCheckExpressions `json:"expressions"`
}

type answer struct {
	Status  string `json:"status"`
	Message string `json:"message,omitempty"`
	Error   string `json:"error,omitempty"`
}

func main() {
	if err := serve(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "gitops:", err)
		os.Exit(1)
	}
}

func serve(input io.Reader, output io.Writer) error {
	lines := bufio.NewScanner(input)
	lines.Buffer(nil, longestLine)
	answers := json.NewEncoder(output)
	for lines.Scan() {
		found, err := judge(lines.Bytes())
		if err != nil {
			found = answer{Error: err.Error()}
		}
		if err := answers.Encode(found); err != nil {
			return err
		}
	}
	return lines.Err()
}

func judge(line []byte) (answer, error) {
	var asked request
	if err := json.Unmarshal(line, &asked); err != nil {
		return answer{}, err
	}
	if asked.Object == nil {
		return answer{}, errors.New("there is no object")
	}
	switch asked.Engine {
	case "kstatus":
		found, err := status.Compute(asked.Object)
		if err != nil {
			return answer{}, err
		}
		return answer{Status: string(found.Status), Message: found.Message}, nil
	case "flux":
		evaluator, err := fluxcel.NewStatusEvaluator(&asked.Expressions)
		if err != nil {
			return answer{}, err
		}
		found, err := evaluator.Evaluate(context.Background(), asked.Object)
		if err != nil {
			return answer{}, err
		}
		return answer{Status: string(found.Status), Message: found.Message}, nil
	case "argo":
		return argoHealth(asked.Object, asked.Script)
	case "argo-diff":
		return argoDiff(asked.Object, asked.Manifest)
	default:
		return answer{}, fmt.Errorf("there is no engine %q", asked.Engine)
	}
}
