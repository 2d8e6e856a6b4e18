package main

import (
	"context"
	"io"

	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
)

const batchRows = 1000

// read writes all rows of a file to an Arrow stream, by Arrow Go.
func read(path string, sink io.Writer) error {
	source, err := file.OpenParquetFile(path, false)
	if err != nil {
		return err
	}
	defer source.Close()
	properties := pqarrow.ArrowReadProperties{BatchSize: batchRows}
	reader, err := pqarrow.NewFileReader(source, properties, memory.DefaultAllocator)
	if err != nil {
		return err
	}
	records, err := reader.GetRecordReader(context.Background(), nil, nil)
	if err != nil {
		return err
	}
	defer records.Release()
	writer := ipc.NewWriter(sink, ipc.WithSchema(records.Schema()))
	for records.Next() {
		if err := writer.Write(records.RecordBatch()); err != nil {
			return err
		}
	}
	if err := records.Err(); err != nil && err != io.EOF {
		return err
	}
	return writer.Close()
}
