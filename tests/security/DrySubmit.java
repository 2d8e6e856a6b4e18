import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.BufferedWriter;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.spark.deploy.SparkSubmit;
import org.apache.spark.deploy.SparkSubmitArguments;
import scala.Tuple4;
import scala.collection.immutable.Seq;

/**
 * Spark's own parsing of `spark-submit` arguments, without a process for each: reads one JSON list of
 * arguments a line and writes one JSON object a line. Compiled by the compiler that Spark has for
 * its queries (tests/security/dry_submit.py).
 */
public class DrySubmit implements java.util.function.BiFunction {
  private final ObjectMapper plain = new ObjectMapper();
  private final ObjectMapper mapper = new ObjectMapper();
  private final SparkSubmit submit = new SparkSubmit();
  private final Configuration hadoop = new Configuration(false);

  public DrySubmit() {
    mapper.registerModule(com.fasterxml.jackson.module.scala.DefaultScalaModule$.MODULE$);
  }

  /** Paths of what to read and of what to write. */
  public Object apply(Object from, Object to) {
    try {
      BufferedReader lines =
          Files.newBufferedReader(Paths.get((String) from, new String[0]), StandardCharsets.UTF_8);
      BufferedWriter out =
          Files.newBufferedWriter(
              Paths.get((String) to, new String[0]),
              StandardCharsets.UTF_8,
              new java.nio.file.OpenOption[0]);
      for (String line = lines.readLine(); line != null; line = lines.readLine()) {
        out.write(mapper.writeValueAsString(parsed(line)));
        out.newLine();
      }
      out.close();
      return null;
    } catch (java.io.IOException error) {
      throw new RuntimeException(error);
    }
  }

  private Map parsed(String line) throws java.io.IOException {
    Map answer = new LinkedHashMap();
    Map asked = (Map) plain.readValue(line, Map.class);
    try {
      Seq arguments =
          scala.jdk.javaapi.CollectionConverters.asScala((List) asked.get("arguments")).toSeq();
      SparkSubmitArguments found =
          new SparkSubmitArguments(arguments, scala.collection.immutable.Map$.MODULE$.empty());
      answer.put("master", found.master());
      answer.put("deployMode", found.deployMode());
      answer.put("name", found.name());
      answer.put("mainClass", found.mainClass());
      answer.put("proxyUser", found.proxyUser());
      answer.put("jars", found.jars());
      answer.put("files", found.files());
      answer.put("archives", found.archives());
      answer.put("pyFiles", found.pyFiles());
      answer.put("packages", found.packages());
      answer.put("repositories", found.repositories());
      answer.put("primaryResource", found.primaryResource());
      answer.put("childArgs", found.childArgs());
      answer.put("properties", found.sparkProperties());
      if (Boolean.TRUE.equals(asked.get("prepare"))) {
        Tuple4 prepared = submit.prepareSubmitEnvironment(found, new scala.Some(hadoop));
        answer.put("client", prepared._4());
        answer.put("prepared", ((org.apache.spark.SparkConf) prepared._3()).getAll());
      }
    } catch (Throwable error) {
      answer.put("error", String.valueOf(error));
    }
    return answer;
  }
}
