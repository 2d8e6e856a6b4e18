package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress"
	"github.com/parquet-go/parquet-go/encoding"
)

// options of a file that is written.
type options struct {
	Codec       string   `json:"codec"`        // none, snappy, gzip, brotli, zstd, lz4
	Encoding    string   `json:"encoding"`     // dictionary, plain, delta
	PageVersion int      `json:"page_version"` // 1 or 2
	PageBytes   int      `json:"page_bytes"`   // of a page's buffer
	GroupRows   int64    `json:"group_rows"`   // rows of a row group
	Bloom       []string `json:"bloom"`        // columns with bloom filters
	INT96       bool     `json:"int96"`        // how timestamps are written
	Encrypted   string   `json:"encrypted"`    // footer (and pages), pages, or nothing
}

var codecs = map[string]compress.Codec{
	"none":   &parquet.Uncompressed,
	"snappy": &parquet.Snappy,
	"gzip":   &parquet.Gzip,
	"brotli": &parquet.Brotli,
	"zstd":   &parquet.Zstd,
	"lz4":    &parquet.Lz4Raw,
}

// encodingOf is nil where parquet-go chooses.
func (o options) encodingOf(kind parquet.Kind) encoding.Encoding {
	switch {
	case kind == parquet.Boolean || kind == parquet.Int96 && o.Encoding == "delta":
		return nil
	case o.Encoding == "dictionary":
		return &parquet.RLEDictionary
	case o.Encoding != "delta":
		return &parquet.Plain
	}
	switch kind {
	case parquet.Int32, parquet.Int64:
		return &parquet.DeltaBinaryPacked
	case parquet.Float, parquet.Double:
		return &parquet.ByteStreamSplit
	case parquet.FixedLenByteArray:
		return &parquet.Plain // Arrow Go reads no other
	default:
		return &parquet.DeltaByteArray
	}
}

// write writes the rows of an Arrow stream to a file, by parquet-go.
func write(source io.Reader, given, path string) error {
	options := options{Codec: "zstd", Encoding: "plain", PageVersion: 1, PageBytes: 1 << 16}
	if err := json.Unmarshal([]byte(given), &options); err != nil {
		return err
	}
	codec, known := codecs[options.Codec]
	if !known {
		return fmt.Errorf("no codec %q", options.Codec)
	}
	stream, err := ipc.NewReader(source)
	if err != nil {
		return err
	}
	defer stream.Release()
	root, err := groupOf(stream.Schema().Fields(), options)
	if err != nil {
		return err
	}
	schema := parquet.NewSchema("schema", root)
	settings := []parquet.WriterOption{
		schema,
		parquet.Compression(codec),
		parquet.DataPageVersion(options.PageVersion),
		parquet.PageBufferSize(options.PageBytes),
	}
	if options.GroupRows > 0 {
		settings = append(settings, parquet.MaxRowsPerRowGroup(options.GroupRows))
	}
	if options.Encrypted != "" {
		settings = append(settings, parquet.WithEncryption(&parquet.EncryptionConfig{
			FooterKey:       []byte("0123456789abcdef"),
			EncryptedFooter: options.Encrypted == "footer",
		}))
	}
	var filters []parquet.BloomFilterColumn
	for _, name := range options.Bloom {
		filters = append(filters, parquet.SplitBlockFilter(10, name))
	}
	settings = append(settings, parquet.BloomFilters(filters...))
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	writer := parquet.NewWriter(file, settings...)
	cut := rows{int96: options.INT96, leaves: make([]parquet.Row, len(schema.Columns()))}
	for stream.Next() {
		batch := stream.RecordBatch()
		for i := range int(batch.NumRows()) {
			row, err := cut.row(batch, i)
			if err != nil {
				return err
			}
			if _, err := writer.WriteRows([]parquet.Row{row}); err != nil {
				return err
			}
		}
	}
	if err := stream.Err(); err != nil {
		return err
	}
	if err := writer.Close(); err != nil {
		return err
	}
	return file.Close()
}
